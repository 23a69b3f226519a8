"""What a command's fields are: the vocabulary of declarations, and the intermediate form of codecs."""
