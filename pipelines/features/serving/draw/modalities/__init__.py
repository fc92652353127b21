"""What a served model makes: pictures of image codes, or texts of tokens, which are called codes here, too."""
