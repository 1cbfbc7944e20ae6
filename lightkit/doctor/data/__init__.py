"""What a doctor checks of the data: splits, labels, features, scale and augmentation."""
