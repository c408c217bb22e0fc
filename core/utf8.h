/* UTF-8 well-formedness (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF). */
#ifndef TTV_CORE_UTF8_H
#define TTV_CORE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Length (1 to 4) of the well-formed sequence at p, of which `left` bytes may be read; 0 when there
 * is none. */
size_t utf8_length(const unsigned char *p, size_t left);
/* Whether all of the text is. */
bool utf8_valid(const char *text);

#endif
