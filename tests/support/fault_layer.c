// A layer of Vulkan's loader that makes a real driver fail, or seem older than it is.
//
// While the file VK_FAULT_FILE names exists, its first letter says what fails: `l`, every submission
// (the device is lost); `s`, every submission too, for want of memory on the device; `m`, every
// allocation of memory. VK_FAULT_API is the minor version of Vulkan that devices report.
// VK_FAULT_NO_16BIT takes 16-bit storage away from them. VK_FAULT_START ends the process that starts
// the driver.

#include <stdio.h>
#include <stdlib.h>

#include "vulkan_layer.h"

static PFN_vkGetPhysicalDeviceProperties next_properties;
static PFN_vkGetPhysicalDeviceProperties2 next_properties_2;
static PFN_vkGetPhysicalDeviceFeatures2 next_features_2;
static PFN_vkQueueSubmit next_submit;
static PFN_vkAllocateMemory next_allocate;

static int fault(void) {
    const char *name = getenv("VK_FAULT_FILE");
    FILE *file = name ? fopen(name, "r") : NULL;
    int letter = file ? fgetc(file) : 0;
    if (file) fclose(file);
    return letter;
}

static void find_of_instance(VkInstance made) {
    if (getenv("VK_FAULT_START")) abort();
#define FIND(name) (PFN_##name)next_instance(made, #name)
    next_properties = FIND(vkGetPhysicalDeviceProperties);
    next_properties_2 = FIND(vkGetPhysicalDeviceProperties2);
    next_features_2 = FIND(vkGetPhysicalDeviceFeatures2);
}

static void find_of_device(VkDevice made) {
    next_submit = (PFN_vkQueueSubmit)next_device(made, "vkQueueSubmit");
    next_allocate = (PFN_vkAllocateMemory)next_device(made, "vkAllocateMemory");
}

static VKAPI_ATTR VkResult VKAPI_CALL queue_submit(VkQueue queue, uint32_t count,
        const VkSubmitInfo *submits, VkFence fence) {
    int letter = fault();
    if (letter == 's') return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return letter == 'l' ? VK_ERROR_DEVICE_LOST : next_submit(queue, count, submits, fence);
}

static VKAPI_ATTR VkResult VKAPI_CALL allocate_memory(VkDevice device,
        const VkMemoryAllocateInfo *info, const VkAllocationCallbacks *allocator,
        VkDeviceMemory *memory) {
    if (fault() == 'm') return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return next_allocate(device, info, allocator, memory);
}

static void change(VkPhysicalDeviceProperties *properties) {
    const char *minor = getenv("VK_FAULT_API");
    if (minor) properties->apiVersion = VK_MAKE_API_VERSION(0, 1, atoi(minor), 0);
}

static VKAPI_ATTR void VKAPI_CALL get_properties(VkPhysicalDevice device,
        VkPhysicalDeviceProperties *properties) {
    next_properties(device, properties);
    change(properties);
}

static VKAPI_ATTR void VKAPI_CALL get_properties_2(VkPhysicalDevice device,
        VkPhysicalDeviceProperties2 *properties) {
    next_properties_2(device, properties);
    change(&properties->properties);
}

static VKAPI_ATTR void VKAPI_CALL get_features_2(VkPhysicalDevice device,
        VkPhysicalDeviceFeatures2 *features) {
    next_features_2(device, features);
    for (VkBaseOutStructure *each = features->pNext; each; each = each->pNext) {
        int is_it = getenv("VK_FAULT_NO_16BIT") != NULL;
        if (is_it && each->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES)
            ((VkPhysicalDeviceVulkan11Features *)each)->storageBuffer16BitAccess = VK_FALSE;
        if (is_it && each->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES)
            ((VkPhysicalDevice16BitStorageFeatures *)each)->storageBuffer16BitAccess = VK_FALSE;
    }
}

const struct layer_function layer_functions[] = {
    {"vkQueueSubmit", queue_submit},
    {"vkAllocateMemory", allocate_memory},
    {"vkGetPhysicalDeviceProperties", get_properties},
    {"vkGetPhysicalDeviceProperties2", get_properties_2},
    {"vkGetPhysicalDeviceProperties2KHR", get_properties_2},
    {"vkGetPhysicalDeviceFeatures2", get_features_2},
    {"vkGetPhysicalDeviceFeatures2KHR", get_features_2},
    {NULL},
};
