"""Peers that train one thing together. Imports neither features nor tasks nor tools."""
