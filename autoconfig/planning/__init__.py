"""What training and serving share: names resolved, calibration files, exported files, answers as JSON."""
