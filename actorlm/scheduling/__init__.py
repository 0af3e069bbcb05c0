"""Decisions: which request runs where, when, and in which KV blocks. No tensors, no sockets, no clocks."""
