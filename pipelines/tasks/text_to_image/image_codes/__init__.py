"""The record format of image codes and the VQGAN codec."""
