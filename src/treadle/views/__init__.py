"""What is told about runs beyond their documents: the way one took, and in what two differ."""
