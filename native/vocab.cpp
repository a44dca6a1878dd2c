// vocab
