"""How the ranks of one replica find each other, and what they exchange."""
