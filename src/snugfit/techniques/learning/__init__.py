"""Techniques that change what is learned."""
