"""For all tests: hypothesis measures no times, since a machine may be busy; pytest's own timeout ends what hangs."""

from hypothesis import settings

settings.register_profile("no deadlines", deadline=None)
settings.load_profile("no deadlines")
