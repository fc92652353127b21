"""Each member checks one answer of a round later, and what it finds false it shows to the others."""
