/* Naming what is not a JPEG or PNG, so that a message tells the user what to do about it. */
#include <stdbool.h>
#include <string.h>

#include "datasets/image.h"

typedef struct Magic {
    size_t offset;
    size_t length;
    const char *bytes;
    const char *kind;
} Magic;

/* First match wins. */
static const Magic magics[] = {
    {0, 2, "\xFF\xD8", "a JPEG image"},
    {0, 8, "\x89PNG\r\n\x1A\n", "a PNG image"},
    {0, 4, "\x89PNG", "a PNG image damaged by a text-mode transfer"},
    {0, 4, "GIF8", "a GIF image"},
    {8, 4, "WEBP", "a WebP image"},
    {4, 8, "ftypavif", "an AVIF image"},
    {4, 8, "ftypavis", "an AVIF image"},
    {4, 7, "ftyphei", "a HEIC image"},
    {4, 8, "ftyphevc", "a HEIC image"},
    {4, 8, "ftypmif1", "a HEIF image"},
    {4, 8, "ftypmsf1", "a HEIF image"},
    {4, 4, "ftyp", "an MP4 or QuickTime video"},
    {0, 4, "II*\0", "a TIFF image"},
    {0, 4, "MM\0*", "a TIFF image"},
    {0, 4, "8BPS", "a Photoshop image"},
    {0, 8, "\0\0\0\x0CjP  ", "a JPEG 2000 image"},
    {0, 4, "\xFF\x4F\xFF\x51", "a JPEG 2000 codestream"},
    {0, 2, "\xFF\x0A", "a JPEG XL image"},
    {0, 8, "\0\0\0\x0CJXL ", "a JPEG XL image"},
    {0, 4, "\0\0\x01\0", "an icon file"},
    {0, 5, "%PDF-", "a PDF document"},
    {0, 2, "\x1F\x8B", "gzip-compressed data"},
    {0, 6,
     "\xFD"
     "7zXZ\0",
     "xz-compressed data"},
    {0, 4, "\x28\xB5\x2F\xFD", "zstd-compressed data"},
    {0, 3, "BZh", "bzip2-compressed data"},
    {0, 4, "PK\x03\x04", "a zip archive"},
    {257, 5, "ustar", "a tar archive"},
    {0, 4, "\x89HDF", "an HDF5 file"},
    {0, 4,
     "\x7F"
     "ELF",
     "a program"},
    {0, 24, "version https://git-lfs.",
     "a Git LFS pointer, not the file itself (run 'git lfs pull')"},
};

static bool is_space(unsigned char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Case-blind: HTML servers answer with any of <!DOCTYPE html>, <html>, <HTML>. */
static bool starts_with_word(const unsigned char *b, size_t size, const char *word) {
    size_t length = strlen(word);
    if (size < length) return false;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = b[i] >= 'A' && b[i] <= 'Z' ? (unsigned char)(b[i] + 32) : b[i];
        if (c != (unsigned char)word[i]) return false;
    }
    return true;
}

static const char *text_kind(const unsigned char *b, size_t size) {
    size_t start = size >= 3 && memcmp(b, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    while (start < size && is_space(b[start])) start++;
    b += start;
    size -= start;
    if (starts_with_word(b, size, "<!doctype html") || starts_with_word(b, size, "<html")) {
        return "an HTML page (a failed download?)";
    }
    if (starts_with_word(b, size, "<svg")) return "an SVG drawing";
    if (starts_with_word(b, size, "<?xml")) return "an XML file";
    if (size > 0 && b[0] == '{') return "JSON or other text";
    return "text";
}

const char *image_kind(const void *bytes, size_t size) {
    const unsigned char *b = bytes;
    if (size == 0) return "an empty file";
    for (size_t i = 0; i < sizeof magics / sizeof magics[0]; i++) {
        const Magic *m = &magics[i];
        if (size >= m->offset + m->length && memcmp(b + m->offset, m->bytes, m->length) == 0) {
            return m->kind;
        }
    }
    size_t look = size < 512 ? size : 512;
    size_t zeros = 0, printable = 0;
    for (size_t i = 0; i < look; i++) {
        zeros += b[i] == 0;
        printable += b[i] >= 0x20 || is_space(b[i]);
    }
    if (zeros == look) return "zero bytes (a hole left by a crash or a broken copy)";
    if (size >= 26 && memcmp(b, "BM", 2) == 0 && zeros > 0) return "a BMP image";
    if (size >= 3 && b[0] == 'P' && b[1] >= '1' && b[1] <= '7' && is_space(b[2])) {
        return "a PNM image";
    }
    if (printable == look) return text_kind(b, look);
    if (size > 1 && b[0] == 0x80 && b[1] <= 5) return "a Python pickle";
    return "unknown binary data";
}
