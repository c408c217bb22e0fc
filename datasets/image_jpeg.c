/* JPEG through libjpeg-turbo: accurate integer DCT and fancy upsampling, the library's (and
 * Pillow's) defaults. */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>
/* After jpeglib.h: its message numbers depend on jconfig.h. */
#include <jerror.h>

#include "core/memory.h"
#include "datasets/exif.h"
#include "datasets/image_internal.h"

/* Real progressive files have about ten scans; a bomb repeats cheap scans over a large picture. */
enum { MAX_SCANS = 100 };
static const double max_scanned_pixels = 4e9; /* scans x pixels: some tens of seconds */

typedef struct JpegReader {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    const Encoded *file;
    bool strict;
    bool out_of_memory;
    ImageRegion region; /* wanted */
    int64_t rows_done;  /* of the region */
    uint8_t *row;       /* a decoded row that does not go straight into the image */
    char message[JMSG_LENGTH_MAX];
} JpegReader;

static void escape_with_message(j_common_ptr cinfo) {
    JpegReader *r = cinfo->client_data;
    cinfo->err->format_message(cinfo, r->message);
    r->out_of_memory = cinfo->err->msg_code == JERR_OUT_OF_MEMORY;
    longjmp(r->escape, 1);
}

/* Warnings after which pixels are guesses. The others are about junk between segments and odd
 * headers: Pillow takes such files without a word and their pixels are whole. */
static bool is_damage(int code) {
    switch (code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_BOGUS_PROGRESSION:
        return true;
    default:
        return false;
    }
}

static void on_message(j_common_ptr cinfo, int level) {
    JpegReader *r = cinfo->client_data;
    if (level < 0 && r->strict && is_damage(cinfo->err->msg_code)) escape_with_message(cinfo);
}

/* libjpeg's own printer writes to stderr; nothing here may. */
static void on_output(j_common_ptr cinfo) {
    (void)cinfo;
}

static void on_progress(j_common_ptr common) {
    JpegReader *r = common->client_data;
    int scans = r->cinfo.input_scan_number;
    double pixels = (double)r->cinfo.image_width * r->cinfo.image_height;
    if (scans <= MAX_SCANS && scans * pixels <= max_scanned_pixels) return;
    snprintf(r->message, sizeof r->message,
             "more scans than any sane file has (scan %d of %ux%u pixels)", scans,
             r->cinfo.image_width, r->cinfo.image_height);
    longjmp(r->escape, 1);
}

/* Without longjmp target: call inside a setjmp frame. */
static void reader_start(JpegReader *r) {
    r->cinfo.client_data = r;
    jpeg_create_decompress(&r->cinfo);
    r->cinfo.progress = &r->progress;
    jpeg_mem_src(&r->cinfo, r->file->bytes, (unsigned long)r->file->size);
    jpeg_read_header(&r->cinfo, TRUE);
}

static void reader_init(JpegReader *r, const Encoded *file, bool strict) {
    *r = (JpegReader){.file = file, .strict = strict};
    r->cinfo.err = jpeg_std_error(&r->errors);
    r->cinfo.client_data = r;
    r->errors.error_exit = escape_with_message;
    r->errors.emit_message = on_message;
    r->errors.output_message = on_output;
    r->progress.progress_monitor = on_progress;
}

static void reader_end(JpegReader *r) {
    jpeg_destroy_decompress(&r->cinfo);
    mem_free(r->row);
    r->row = NULL;
}

static Status reader_failed(const JpegReader *r) {
    Status code = r->out_of_memory ? STATUS_MEMORY : STATUS_DATA;
    return status_set(code, "%s: bad JPEG: %s", r->file->name, r->message);
}

static void fill_info(const JpegReader *r, ImageInfo *info) {
    *info = (ImageInfo){
        .format = "jpeg",
        .width = r->cinfo.image_width,
        .height = r->cinfo.image_height,
        .channels = r->cinfo.num_components,
        .bits = r->cinfo.data_precision,
        .orientation = exif_orientation_jpeg(r->file->bytes, r->file->size),
        .progressive_or_interlaced = r->cinfo.progressive_mode,
    };
}

/* Pixels that a byte can stand for at most: a Huffman code has one bit at least, and each block of 8x8 needs a
 * code for DC and one for the end of AC (in progressive files, whose runs of empty blocks cost nothing, for DC
 * only). 170 for baseline 4:2:0, 256 for grey. Arithmetic coding knows no such bound; deflate's is taken. */
static int64_t jpeg_pixels_per_byte(const JpegReader *r) {
    int64_t blocks = 0, largest_h = 1, largest_v = 1;
    if (r->cinfo.arith_code) return PNG_PIXELS_PER_BYTE;
    for (int i = 0; i < r->cinfo.num_components; i++) {
        const jpeg_component_info *c = &r->cinfo.comp_info[i];
        blocks += c->h_samp_factor * c->v_samp_factor;
        if (c->h_samp_factor > largest_h) largest_h = c->h_samp_factor;
        if (c->v_samp_factor > largest_v) largest_v = c->v_samp_factor;
    }
    int64_t bits = blocks * (r->cinfo.progressive_mode ? 1 : 2);
    return 64 * 8 * largest_h * largest_v / bits;
}

static Status check_components(const JpegReader *r) {
    int n = r->cinfo.num_components;
    if (n == 1 || n == 3 || n == 4) return STATUS_OK;
    return status_set(STATUS_DATA, "%s: JPEG with %d components; 1, 3 and 4 are understood",
                      r->file->name, n);
}

Status jpeg_probe(const Encoded *file, ImageInfo *info) {
    JpegReader r;
    reader_init(&r, file, false);
    Status s = STATUS_OK;
    if (setjmp(r.escape) == 0) {
        reader_start(&r);
        fill_info(&r, info);
        s = check_components(&r);
    } else {
        s = reader_failed(&r);
    }
    reader_end(&r);
    return s;
}

/* Round(a * b / 255) for bytes, exact. */
static unsigned mul_255(unsigned a, unsigned b) {
    unsigned t = a * b + 128;
    return (t + (t >> 8)) >> 8;
}

/* Adobe writes CMYK inverted (255 = no ink); without its marker the values are plain. The
 * conversion is Pillow's: each colour is what its ink leaves of the light that black leaves. */
static void cmyk_to_rgb(const uint8_t *cmyk, int64_t pixels, bool inverted, uint8_t *rgb) {
    unsigned flip = inverted ? 255 : 0;
    for (int64_t i = 0; i < pixels; i++, cmyk += 4, rgb += 3) {
        unsigned light = 255 - (cmyk[3] ^ flip);
        for (int c = 0; c < 3; c++) rgb[c] = (uint8_t)(light - mul_255(cmyk[c] ^ flip, light));
    }
}

/* Partial decoding of the library differs from a full one at the edges of what it is told to
 * produce: decode this much more on each side. Two iMCUs of the largest common size hold every
 * upsampling neighbour. */
enum { MARGIN = 32 };

/* Partial decoding was compared with full decoding for these layouts only
 * (tests/unit/test_data_region.c). */
static bool can_decode_partly(const JpegReader *r) {
    const jpeg_component_info *c = r->cinfo.comp_info;
    if (r->cinfo.num_components == 1) return c[0].h_samp_factor == 1 && c[0].v_samp_factor == 1;
    if (r->cinfo.num_components != 3 || c[0].h_samp_factor > 2 || c[0].v_samp_factor > 2) {
        return false;
    }
    for (int i = 1; i < 3; i++) {
        if (c[i].h_samp_factor != 1 || c[i].v_samp_factor != 1) return false;
    }
    return true;
}

/* Narrows the output to the wanted columns and skips to the wanted rows, as far as the layout
 * allows; the column that the first delivered pixel has. */
static int64_t narrow_output(JpegReader *r) {
    j_decompress_ptr cinfo = &r->cinfo;
    const ImageRegion *region = &r->region;
    JDIMENSION at = 0;
    if (!can_decode_partly(r)) return 0;
    if (region->width < cinfo->image_width) {
        int64_t left = region->left > MARGIN ? region->left - MARGIN : 0;
        int64_t right = region->left + region->width + MARGIN;
        if (right > cinfo->image_width) right = cinfo->image_width;
        JDIMENSION width = (JDIMENSION)(right - left);
        at = (JDIMENSION)left;
        jpeg_crop_scanline(cinfo, &at, &width);
    }
    if (region->top > MARGIN) jpeg_skip_scanlines(cinfo, (JDIMENSION)(region->top - MARGIN));
    return at;
}

static void read_region(JpegReader *r, Image *out) {
    j_decompress_ptr cinfo = &r->cinfo;
    const ImageRegion *region = &r->region;
    int64_t offset = region->left - narrow_output(r);
    bool cmyk = cinfo->out_color_space == JCS_CMYK;
    bool direct = !cmyk && region->width == cinfo->output_width;
    while (cinfo->output_scanline < region->top + region->height) {
        int64_t y = (int64_t)cinfo->output_scanline - region->top;
        uint8_t *target = y < 0 ? r->row : out->pixels + y * region->width * 3;
        JSAMPROW row = direct ? target : r->row;
        jpeg_read_scanlines(cinfo, &row, 1);
        if (y < 0) continue;
        if (cmyk) {
            cmyk_to_rgb(row + offset * 4, region->width, cinfo->saw_Adobe_marker, target);
        } else if (!direct) {
            memcpy(target, row + offset * 3, (size_t)region->width * 3);
        }
        r->rows_done = y + 1;
    }
}

/* Parses what lies below the region, so that damage there is found as in a full decode. */
static void read_rest(JpegReader *r) {
    j_decompress_ptr cinfo = &r->cinfo;
    int64_t rest = (int64_t)cinfo->output_height - cinfo->output_scanline;
    /* Skipping to the very end would drop the remaining data unread. */
    if (rest > 1 && can_decode_partly(r)) jpeg_skip_scanlines(cinfo, (JDIMENSION)(rest - 1));
    while (cinfo->output_scanline < cinfo->output_height) {
        JSAMPROW row = r->row;
        jpeg_read_scanlines(cinfo, &row, 1);
    }
    jpeg_finish_decompress(cinfo);
}

static void prepare(JpegReader *r) {
    j_decompress_ptr cinfo = &r->cinfo;
    cinfo->out_color_space = cinfo->num_components == 4 ? JCS_CMYK : JCS_RGB;
    /* Whole-image coefficient buffers of progressive files: 2 bytes in each of at most 4
     * components, padded to whole MCUs. */
    double padded = ((double)cinfo->image_width + 64) * ((double)cinfo->image_height + 64);
    cinfo->mem->max_memory_to_use = (long)(64e6 + 16 * padded);
}

/* Everything after the header. Leaves by longjmp when libjpeg gives up; all state is in *r and
 * *out. */
static Status decode_body(JpegReader *r, const DecodeJob *job, Image *out) {
    ImageInfo info;
    void *row;
    fill_info(r, &info);
    TRY(check_components(r));
    TRY(image_check_size(job, &info, jpeg_pixels_per_byte(r)));
    TRY(image_resolve_region(job, &info, &r->region));
    TRY(mem_alloc(&row, info.width, 4, "a row of pixels"));
    r->row = row;
    prepare(r);
    jpeg_start_decompress(&r->cinfo);
    TRY(image_allocate(job, r->region.width, r->region.height, out));
    read_region(r, out);
    read_rest(r);
    return STATUS_OK;
}

/* What became of a decode that libjpeg gave up: an error, or for the lenient an image black at the
 * bottom. */
static Status decode_broken(const JpegReader *r, Image *out) {
    if (r->strict || r->rows_done == 0 || r->out_of_memory) return reader_failed(r);
    size_t row_bytes = (size_t)out->width * 3;
    int64_t missing = out->height - r->rows_done;
    memset(out->pixels + (size_t)r->rows_done * row_bytes, 0, (size_t)missing * row_bytes);
    return STATUS_OK;
}

Status jpeg_decode(const DecodeJob *job, Image *out) {
    JpegReader r;
    Status s;
    reader_init(&r, &job->file, job->options->strict);
    if (setjmp(r.escape) == 0) {
        reader_start(&r);
        s = decode_body(&r, job, out);
    } else {
        s = decode_broken(&r, out);
    }
    reader_end(&r);
    if (s != STATUS_OK) image_discard(job, out);
    return s;
}
