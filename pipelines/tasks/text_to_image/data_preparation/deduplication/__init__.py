"""Finds pictures that come again, the same or nearly, so that each is learnt from once."""
