"""The memory calculator: which settings fit which device."""
