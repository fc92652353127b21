"""The stages between captioned pictures and generated ones; each sub-package is one stage."""
