"""Running the steps of one replica, on whatever devices."""
