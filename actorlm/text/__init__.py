"""Text to token ids and back: tokenizer, chat template, streams of text, stop strings. Knows no sockets."""
