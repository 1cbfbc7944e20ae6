"""Pages for the eye: samples as the network gets them, predictions beside targets, the largest losses."""
