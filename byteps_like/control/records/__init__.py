"""Where a scheduler stores what it has decided. The service writes it; nothing of control is known here."""
