"""Texts as data: rows of texts, chats and tags to tokens."""
