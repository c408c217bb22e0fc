#include "core/config.h"

#include <ctype.h>
#include <string.h>

enum { MAX_WORD = 63 };

static bool same_letter(char a, char b) {
    if ((a == '-' || a == '_') && (b == '-' || b == '_')) return true;
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Insertions, deletions, substitutions and swaps of neighbours (optimal string alignment). */
static int edit_distance(const char *a, const char *b) {
    int rows[3][MAX_WORD + 1];
    int length = (int)strlen(b);
    int *before = rows[0], *last = rows[1], *now = rows[2];
    for (int j = 0; j <= length; j++) last[j] = j;
    for (int i = 1; a[i - 1] != '\0'; i++) {
        now[0] = i;
        for (int j = 1; j <= length; j++) {
            int best = last[j - 1] + !same_letter(a[i - 1], b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            bool swapped = i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) &&
                           same_letter(a[i - 2], b[j - 1]);
            if (swapped && before[j - 2] + 1 < best) best = before[j - 2] + 1;
            now[j] = best;
        }
        int *free_row = before;
        before = last;
        last = now;
        now = free_row;
    }
    return last[length];
}

const char *nearest_name(const char *word, const char *const *candidates, int count) {
    size_t length = strlen(word);
    const char *best = NULL;
    /* A third of the letters may be wrong, three at most: beyond that, suggestions confuse. */
    int limit = length < 3 ? 1 : length < 9 ? (int)(length + 2) / 3 : 3;
    if (length == 0 || length > MAX_WORD) return NULL;
    for (int i = 0; i < count; i++) {
        if (strlen(candidates[i]) > MAX_WORD) continue;
        int distance = edit_distance(word, candidates[i]);
        if (distance > limit || (size_t)distance >= length) continue;
        best = candidates[i];
        limit = distance - 1;
        if (limit < 0) break;
    }
    return best;
}
