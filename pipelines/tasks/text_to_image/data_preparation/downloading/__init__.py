"""Downloads the pictures of a list of addresses into tars that `data prepare` reads."""
