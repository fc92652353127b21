"""The service that admits users to a run: the organiser's program."""
