"""Where a scheduler stores what it has decided: a row per place (`opening`). The service writes it; nothing of control
is known here."""
