"""Publishing to the Hub, and an embedded Hub for one machine. Imports nothing else of this project."""
