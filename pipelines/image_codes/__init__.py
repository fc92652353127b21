"""The record format of image codes and the VQGAN codec. Imports nothing else of ours."""
