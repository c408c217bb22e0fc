/* EXIF orientation: one tag of IFD0, found by a bounded walk that never fails. */
#ifndef TTV_DATASETS_EXIF_H
#define TTV_DATASETS_EXIF_H

#include <stddef.h>

/* 1..8; 1 when the block is absent, broken or holds anything else. */
int exif_orientation_tiff(const unsigned char *tiff, size_t size);
int exif_orientation_jpeg(const unsigned char *bytes,
                          size_t size); /* APP1 segments before the scan */
int exif_orientation_png(const unsigned char *bytes, size_t size); /* eXIf chunk */

#endif
