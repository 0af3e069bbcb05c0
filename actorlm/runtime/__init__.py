"""How actors talk and live: mailboxes, transports, handshakes, supervision. Knows no models."""
