"""`dalle-collab run`: an organiser's commands."""
