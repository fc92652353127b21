"""Sources of captioned pictures, each a file behind the interface of `sample.py`; `finding.py` lists them."""
