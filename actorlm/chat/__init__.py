"""`actorlm chat`: a conversation at the terminal."""
