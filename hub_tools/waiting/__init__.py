"""Waiting for a Hub that is down or busy: how long it asks for, and trying again."""
