"""The demo's pictures: drawn scenes, their captions, and a judge of drawn ones."""
