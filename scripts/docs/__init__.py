"""What the site of the docs needs beside its pages."""
