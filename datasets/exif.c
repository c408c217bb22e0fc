#include "datasets/exif.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { TAG_ORIENTATION = 0x0112, TYPE_BYTE = 1, TYPE_SHORT = 3, TYPE_LONG = 4, ENTRY_BYTES = 12 };

typedef struct Tiff {
    const unsigned char *bytes;
    size_t size;
    bool big_endian;
} Tiff;

/* Reads beyond the block give 0, which no tag, count or orientation that we look for equals. */
static uint32_t read_u16(const Tiff *t, size_t at) {
    if (at > t->size || t->size - at < 2) return 0;
    const unsigned char *b = t->bytes + at;
    return t->big_endian ? (uint32_t)b[0] << 8 | b[1] : (uint32_t)b[1] << 8 | b[0];
}

static uint32_t read_u32(const Tiff *t, size_t at) {
    uint32_t first = read_u16(t, at), second = read_u16(t, at + 2);
    return t->big_endian ? first << 16 | second : second << 16 | first;
}

static uint32_t entry_value(const Tiff *t, size_t at) {
    switch (read_u16(t, at + 2)) {
    case TYPE_BYTE:
        return at + 8 < t->size ? t->bytes[at + 8] : 0;
    case TYPE_SHORT:
        return read_u16(t, at + 8);
    case TYPE_LONG:
        return read_u32(t, at + 8);
    default:
        return 0;
    }
}

int exif_orientation_tiff(const unsigned char *tiff, size_t size) {
    Tiff t = {tiff, size, false};
    if (size < 8) return 1;
    if (memcmp(tiff, "II", 2) != 0 && memcmp(tiff, "MM", 2) != 0) return 1;
    t.big_endian = tiff[0] == 'M';
    size_t ifd = read_u32(&t, 4);
    if (read_u16(&t, 2) != 42 || ifd >= size) return 1;
    size_t count = read_u16(&t, ifd);
    for (size_t i = 0; i < count; i++) {
        size_t at = ifd + 2 + i * ENTRY_BYTES;
        if (at + ENTRY_BYTES > size) break;
        if (read_u16(&t, at) != TAG_ORIENTATION) continue;
        uint32_t value = read_u32(&t, at + 4) == 1 ? entry_value(&t, at) : 0;
        return value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

int exif_orientation_jpeg(const unsigned char *bytes, size_t size) {
    enum { SOS = 0xDA, EOI = 0xD9, APP1 = 0xE1 };
    size_t at = 2;
    while (at + 4 <= size && bytes[at] == 0xFF) {
        unsigned marker = bytes[at + 1];
        if (marker == 0xFF) { /* fill byte */
            at++;
            continue;
        }
        if (marker == SOS || marker == EOI) break;
        size_t length = (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        if (length < 2 || length > size - at - 2) break;
        if (marker == APP1 && length >= 8 && memcmp(bytes + at + 4, "Exif\0", 6) == 0) {
            return exif_orientation_tiff(bytes + at + 10, length - 8);
        }
        at += 2 + length;
    }
    return 1;
}

int exif_orientation_png(const unsigned char *bytes, size_t size) {
    enum { SIGNATURE = 8, FRAME = 12 }; /* a chunk is length, type, data, CRC */
    size_t at = SIGNATURE;
    while (at + FRAME <= size) {
        size_t length = (size_t)bytes[at] << 24 | (size_t)bytes[at + 1] << 16 |
                        (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        if (length > size - at - FRAME) break;
        const unsigned char *type = bytes + at + 4;
        if (memcmp(type, "eXIf", 4) == 0) return exif_orientation_tiff(type + 4, length);
        if (memcmp(type, "IEND", 4) == 0) break;
        at += FRAME + length;
    }
    return 1;
}
