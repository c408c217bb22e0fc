/* Fields of a tar header block and PAX records; pure functions on bytes. Private to datasets/. */
#ifndef TTV_DATASETS_TAR_HEADER_H
#define TTV_DATASETS_TAR_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TAR_BLOCK = 512,
    TAR_SIZE_OFFSET = 124,
    TAR_SIZE_LENGTH = 12,
    TAR_TYPE_OFFSET = 156,
    TAR_JOINED_NAME = 260, /* prefix (155), '/', name (100) */
};

/* Bytes that are not NUL-terminated. start NULL: none. */
typedef struct TarText {
    const char *start;
    size_t length;
} TarText;

bool tar_text_is(TarText text, const char *word);
/* A fixed field: up to the first NUL or `size`. */
TarText tar_field(const char *field, size_t size);

bool tar_block_is_zero(const unsigned char *block);
/* Unsigned sum (POSIX) or signed sum (historic writers). */
bool tar_checksum_ok(const unsigned char *block);
/* Octal digits, or GNU's base 256 with the top bit set; false when it is neither or exceeds 63
 * bits. */
bool tar_number(const unsigned char *field, size_t size, uint64_t *value);
bool tar_decimal(TarText text, uint64_t *value);

/* Regular file (also contiguous and pre-POSIX). */
bool tar_type_is_file(char type);
/* Links, devices, folders, FIFOs: no data follow, whatever the size field says. */
bool tar_type_is_empty(char type);

/* Name of a header, with the ustar prefix joined into `joined` when there is one. */
TarText tar_header_name(const unsigned char *block, char joined[TAR_JOINED_NAME]);

/* Takes "LENGTH key=value\n" off the front of *rest; false when it is malformed. */
bool tar_pax_record(TarText *rest, TarText *key, TarText *value);

#endif
