"""The block as vector code: fission at barriers, lanes of a vector for neighbouring threads."""
