"""Who speaks: one file per actor, each a thin shell around objects that decide."""
