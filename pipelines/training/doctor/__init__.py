"""Finding out, before it costs hours, whether a machine can take part in a run: each check names cause and cure."""
