"""Faults and attacks, and the script that schedules them."""
