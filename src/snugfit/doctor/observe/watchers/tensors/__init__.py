"""Acts of a script on tensors themselves: views, shapes that meet, values taken out of a graph, graphs that are held."""
