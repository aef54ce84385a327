"""The catalog of images, of one kernel or shared by several."""
