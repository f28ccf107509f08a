"""Stores: journals, snapshots, blobs and projections behind one protocol."""
