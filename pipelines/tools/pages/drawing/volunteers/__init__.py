"""Drawing at volunteers' servers for a page: a program of its own asks them, the page decodes and ranks."""
