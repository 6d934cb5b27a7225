"""The study of text generation: one checkpoint's text from several splits."""
