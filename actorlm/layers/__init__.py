"""What models are built of. A layer owns its weights and knows no request."""
