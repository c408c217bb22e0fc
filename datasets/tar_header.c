#include "datasets/tar_header.h"

#include <string.h>

enum { NAME_LENGTH = 100, CHECKSUM_OFFSET = 148, CHECKSUM_LENGTH = 8, MAGIC_OFFSET = 257 };
enum { PREFIX_OFFSET = 345, PREFIX_LENGTH = 155 };

bool tar_text_is(TarText text, const char *word) {
    return strlen(word) == text.length && memcmp(text.start, word, text.length) == 0;
}

TarText tar_field(const char *field, size_t size) {
    return (TarText){field, strnlen(field, size)};
}

bool tar_block_is_zero(const unsigned char *block) {
    for (int i = 0; i < TAR_BLOCK; i++) {
        if (block[i] != 0) return false;
    }
    return true;
}

bool tar_number(const unsigned char *field, size_t size, uint64_t *value) {
    uint64_t v = 0;
    if (field[0] & 0x80) {
        if (field[0] != 0x80) return false; /* negative, or more than 88 bits */
        for (size_t i = 1; i < size; i++) {
            if (v >> 55 != 0) return false;
            v = v << 8 | field[i];
        }
        *value = v;
        return true;
    }
    size_t i = 0;
    while (i < size && field[i] == ' ') i++;
    size_t first = i;
    for (; i < size && field[i] >= '0' && field[i] <= '7'; i++) {
        if (v >> 60 != 0) return false;
        v = v << 3 | (uint64_t)(field[i] - '0');
    }
    if (i < size && field[i] != ' ' && field[i] != '\0') return false;
    *value = v;
    /* Some writers leave the field of a folder empty: zero. */
    return i > first || field[first < size ? first : 0] == '\0';
}

bool tar_checksum_ok(const unsigned char *block) {
    uint64_t stored;
    int64_t plain = 0, signed_sum = 0;
    if (!tar_number(block + CHECKSUM_OFFSET, CHECKSUM_LENGTH, &stored)) return false;
    for (int i = 0; i < TAR_BLOCK; i++) {
        bool own = i >= CHECKSUM_OFFSET && i < CHECKSUM_OFFSET + CHECKSUM_LENGTH;
        unsigned char b = own ? ' ' : block[i];
        plain += b;
        signed_sum += (signed char)b;
    }
    return (int64_t)stored == plain || (int64_t)stored == signed_sum;
}

bool tar_decimal(TarText text, uint64_t *value) {
    uint64_t v = 0;
    if (text.length == 0 || text.length > 18) return false;
    for (size_t i = 0; i < text.length; i++) {
        if (text.start[i] < '0' || text.start[i] > '9') return false;
        v = v * 10 + (uint64_t)(text.start[i] - '0');
    }
    *value = v;
    return true;
}

bool tar_type_is_file(char type) {
    return type == '0' || type == '\0' || type == '7';
}

bool tar_type_is_empty(char type) {
    return type >= '1' && type <= '6';
}

TarText tar_header_name(const unsigned char *block, char joined[TAR_JOINED_NAME]) {
    TarText name = tar_field((const char *)block, NAME_LENGTH);
    /* Only POSIX ustar has the prefix; GNU's "ustar  " keeps other things there. */
    if (memcmp(block + MAGIC_OFFSET, "ustar\0", 6) != 0) return name;
    TarText prefix = tar_field((const char *)block + PREFIX_OFFSET, PREFIX_LENGTH);
    if (prefix.length == 0) return name;
    memcpy(joined, prefix.start, prefix.length);
    joined[prefix.length] = '/';
    memcpy(joined + prefix.length + 1, name.start, name.length);
    return (TarText){joined, prefix.length + 1 + name.length};
}

bool tar_pax_record(TarText *rest, TarText *key, TarText *value) {
    const char *space = memchr(rest->start, ' ', rest->length);
    uint64_t length;
    if (space == NULL) return false;
    size_t digits = (size_t)(space - rest->start);
    if (!tar_decimal((TarText){rest->start, digits}, &length)) return false;
    if (length > rest->length || length < digits + 3) return false;
    const char *end = rest->start + length - 1;
    if (*end != '\n') return false;
    const char *start = space + 1;
    const char *equals = memchr(start, '=', (size_t)(end - start));
    if (equals == NULL) return false;
    *key = (TarText){start, (size_t)(equals - start)};
    *value = (TarText){equals + 1, (size_t)(end - equals - 1)};
    rest->start = end + 1;
    rest->length -= length;
    return true;
}
